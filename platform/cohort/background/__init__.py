"""What happens without a request: Celery tasks, the reconciler, outages, the beat schedule."""
