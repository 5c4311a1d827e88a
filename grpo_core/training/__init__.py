"""The update: micro-batches, losses over a model, who holds the weights."""
