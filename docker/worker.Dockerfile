# A GPU worker: Celery and the trainer. Knows no database. Build from the root of the checkout:
#   docker build --file docker/worker.Dockerfile --tag cohort-worker .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
FROM $PYTHON_IMAGE AS build
WORKDIR /src
COPY docker/worker.lock ./
# Every file by its hash; nothing is built but Cohort.
RUN python -m venv /opt/cohort \
 && /opt/cohort/bin/pip install --no-cache-dir --only-binary :all: --require-hashes --requirement worker.lock
COPY pyproject.toml README.md LICENSE ./
COPY grpo_core grpo_core
COPY worker worker
COPY migrations migrations
COPY platform platform
COPY templates templates
RUN /opt/cohort/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation . \
 && /opt/cohort/bin/pip check

FROM $PYTHON_IMAGE
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/cohort /opt/cohort
RUN useradd --system --uid 10002 --create-home --home-dir /var/lib/cohort cohort
ENV PATH=/opt/cohort/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    COHORT_HOME=/var/lib/cohort \
    COHORT_MODELS_DIR=/models
USER cohort
WORKDIR /var/lib/cohort
# A volume takes the owner of the folder that it covers.
RUN mkdir runs .cache
# Time to stop the trainer and ship what it recorded: see stop_grace_period in compose.yaml.
STOPSIGNAL SIGTERM
CMD ["celery", "-A", "worker.celery_app", "worker", "--loglevel", "INFO"]
