"""What every other folder may use: settings of the environment, files, formatting, the Celery app, refusals."""
