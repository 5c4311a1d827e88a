"""What worker and platform send each other: messages and queues. Only shapes; no HTTP."""
