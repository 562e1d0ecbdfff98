"""A second model family in the smallest size: logistic regression on the features, with no word about tokens."""
