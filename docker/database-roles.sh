#!/bin/sh
# Run once by PostgreSQL's image, when it makes the database: the roles that the web servers and the platform's workers
# connect as. What they may do is granted by every migration.
set -eu
for part in web ingest; do
    psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 --set role="cohort_$part" \
        --set password="$(cat "/run/secrets/database_password_$part")" <<'SQL'
CREATE ROLE :"role" LOGIN PASSWORD :'password';
SQL
done
