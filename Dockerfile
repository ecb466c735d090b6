# The service, its workers and its command line in one image; docs/deployment.md says how it runs.
# `--target with-database` adds the private PostgreSQL. The digest is that of an index of images for
# several architectures; a newer one is found by `docker buildx imagetools inspect IMAGE:TAG`.
ARG BASE=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# What the service needs. Only `strip` comes from Debian, and it does not stay.
FROM ${BASE} AS dependencies
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends binutils \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements-all.lock ./
RUN python -m venv --without-pip /opt/venv \
 && pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --only-binary :all: \
        --require-hashes -r requirements-all.lock
COPY deploy/image deploy/image
RUN python deploy/image/trim.py /opt/venv/lib/python3*/site-packages /opt/database

# With bytecode, a layer that changes only with the lock or with what the service loads of it.
FROM dependencies AS libraries
COPY app app
RUN PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 /opt/venv/bin/python deploy/image/bytecode.py

# The service itself, which is what most releases change, and the list of all its parts.
FROM dependencies AS service
COPY requirements-build.lock ./
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --only-binary :all: --require-hashes \
        -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY migrations migrations
COPY inspector/package-lock.json inspector/
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --no-index \
        --prefix /opt/service /wheels/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/service/lib \
 && mkdir -p /opt/service/share \
 && /opt/build/bin/python deploy/image/sbom.py /opt/venv/bin/python inspector/package-lock.json \
        /opt/service/share/sbom.cdx.json

FROM ${BASE} AS image
LABEL org.opencontainers.image.title="context-service" \
      org.opencontainers.image.description="An HTTP service that owns an LLM agent's context window" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --no-log-init --shell /usr/sbin/nologin --home-dir /data --create-home \
        --skel /dev/null context
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CONTEXT_HOST=0.0.0.0 \
    CONTEXT_DATA_DIR=/data
COPY --from=libraries /opt/venv /opt/venv
COPY --from=service /opt/service /opt/venv
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
# By the shell, in a few milliseconds: starting Python every ten seconds would cost more than idling.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/${CONTEXT_PORT:-8080} && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["context-service"]
CMD ["serve"]

FROM image AS with-database
COPY --from=dependencies /opt/database /opt/database
ENV PYTHONPATH=/opt/database

# The last stage is what is built without `--target`.
FROM image
