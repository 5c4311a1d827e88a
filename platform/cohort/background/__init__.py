"""What runs outside of requests: Celery tasks, the reconciler, outages, the beat schedule."""
