# The service, its workers and its command line in one image; docs/deployment.md says how it runs.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

# What the service needs, in a layer that changes with the lock only. It holds no pip, and what is
# compiled is trusted without a look at its source: the same lock gives the same bytes.
FROM ${BASE} AS dependencies
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv --without-pip /opt/venv \
 && pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --only-binary :all: \
        --require-hashes -r requirements.lock \
 && rm -rf /opt/venv/lib/python3*/site-packages/litellm/proxy/_experimental/out \
 && python -m compileall -q --invalidation-mode unchecked-hash -x /litellm/proxy/ /opt/venv/lib

# The page at /inspector. Of this stage the image has only the built files.
FROM ${BASE} AS inspector
WORKDIR /src
COPY requirements-inspector.lock ./
RUN python -m venv /opt/node \
 && /opt/node/bin/pip install --no-cache-dir --only-binary :all: --require-hashes \
        -r requirements-inspector.lock
COPY openapi openapi
COPY inspector inspector
RUN mkdir app && /opt/node/bin/python inspector/build.py

# The service itself, which is what most releases change.
FROM dependencies AS service
COPY requirements-build.lock ./
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --only-binary :all: --require-hashes \
        -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY migrations migrations
COPY --from=inspector /src/app/inspector_files app/inspector_files
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --no-index \
        --prefix /opt/service /wheels/*.whl \
 && python -m compileall -q --invalidation-mode unchecked-hash /opt/service/lib

FROM ${BASE}
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
COPY --from=dependencies /opt/venv /opt/venv
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
