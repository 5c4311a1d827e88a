# The platform: web server, platform worker and `cohort manage`. Holds no torch. Build from the root of the checkout:
#   docker build --file docker/web.Dockerfile --tag cohort-web .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
FROM $PYTHON_IMAGE AS build
WORKDIR /src
COPY docker/web.lock ./
# Every file by its hash; nothing is built but Cohort.
RUN python -m venv /opt/cohort \
 && /opt/cohort/bin/pip install --no-cache-dir --only-binary :all: --require-hashes --requirement web.lock
COPY pyproject.toml README.md LICENSE ./
COPY grpo_core grpo_core
COPY worker worker
COPY migrations migrations
COPY platform platform
COPY templates templates
RUN /opt/cohort/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation . \
 && /opt/cohort/bin/pip check

FROM $PYTHON_IMAGE
# The audit log's heads are pushed with git, over https or ssh.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git openssh-client \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/cohort /opt/cohort
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/cohort cohort
ENV PATH=/opt/cohort/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DJANGO_SETTINGS_MODULE=cohort.settings \
    COHORT_HOME=/var/lib/cohort \
    COHORT_LISTEN=0.0.0.0:8400
USER cohort
WORKDIR /var/lib/cohort
# A volume takes the owner of the folder that it covers.
RUN mkdir artifacts signing scratch
# Static files belong to the image; they need settings that would pass for real ones, and no database.
RUN COHORT_MODE=embedded COHORT_SECRET_KEY=only-while-building COHORT_DATABASE_URL=postgresql:///none \
    cohort manage collectstatic --no-input --verbosity 0
EXPOSE 8400
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8400/healthz', timeout=4)"]
CMD ["gunicorn", "--config", "python:cohort.server.gunicorn", "cohort.server.wsgi:application"]
