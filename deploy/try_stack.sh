#!/bin/sh
# Brings the compose stack up, has a conversation through both replicas, and takes it down again:
#   deploy/try_stack.sh                                   with `docker compose`
#   COMPOSE="podman-compose" deploy/try_stack.sh          with another program of its kind
# The stack must not run already; its volumes are deleted at the end.
set -eu
cd "$(dirname "$0")/.."
COMPOSE=${COMPOSE:-docker compose}
FIRST=http://127.0.0.1:8080 SECOND=http://127.0.0.1:8081 PROMETHEUS=http://127.0.0.1:9090

call() {
    curl --silent --show-error --fail-with-body --header 'Content-Type: application/json' "$@"
    echo
}

wait_for() {
    for _ in $(seq 90); do
        curl --silent --fail --output /dev/null "$1" && return
        sleep 1
    done
    echo "No answer from $1" >&2
    $COMPOSE logs >&2
    return 1
}

trap '$COMPOSE down --volumes' EXIT
$COMPOSE up --detach
wait_for $FIRST/readyz
wait_for $SECOND/readyz
$COMPOSE ps

set -x
call $FIRST/v1/conversations --data '{"conversation_id": "try", "model": "gpt-4o-mini"}'
call $SECOND/v1/conversations/try/messages --data '{"messages": [
    {"role": "user", "content": "Which colour has the sky?"}]}'
call $FIRST/v1/conversations/try/context --data '{"format": "openai_chat"}' | tee /dev/stderr |
    grep --quiet 'Which colour has the sky?'
job=$(call "$SECOND/v1/conversations/try/compact?wait=false" --data '{}' | sed 's/.*"job_id":"\([^"]*\)".*/\1/')
for _ in $(seq 30); do
    call "$FIRST/v1/jobs/$job" | tee /dev/stderr | grep --quiet '"status":"done"' && break
    sleep 1
done
call "$FIRST/v1/jobs/$job" | grep --quiet '"status":"done"'
wait_for $PROMETHEUS/-/ready
for _ in $(seq 40); do
    call "$PROMETHEUS/api/v1/query" --get --data-urlencode 'query=sum(up{job="context-service"})' |
        grep --quiet '"3"' && exit
    sleep 1
done
echo "Prometheus does not read both replicas and the worker" >&2
exit 1
