"""Model families behind one ModelSpec: how inputs become token ids, how a label is scored, how it is trained."""
