"""What a step computes besides estimators and losses, as pure functions on tensors: advantages of a step by the chosen
estimator, masks, KL, denominators, correction. No trainer state, no model, no files; docs/losses/ has each formula with
its source."""
