"""Where ranks run: siblings behind one small interface."""
