"""Evidence to model version: the gate, registration, promotion as compare-and-set, history, model card."""
