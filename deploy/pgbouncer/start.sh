#!/bin/sh
# Writes the account that PgBouncer lets in, then becomes PgBouncer. The password is in no image.
set -eu
: "${POSTGRES_USER:?}" "${POSTGRES_PASSWORD:?}"

quoted() {
    printf '"%s"' "$(printf '%s' "$1" | sed 's/"/""/g')"
}

umask 077
printf '%s %s\n' "$(quoted "$POSTGRES_USER")" "$(quoted "$POSTGRES_PASSWORD")" > /tmp/userlist.txt
exec pgbouncer "$@" /etc/pgbouncer/pgbouncer.ini
