"""The platform: pages, public API and worker API over PostgreSQL.

Never imports torch or transformers, and never imports `worker`: runs are dispatched by task name.
"""

__version__ = "0.1.0"
