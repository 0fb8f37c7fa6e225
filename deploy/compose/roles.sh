#!/bin/sh
# Runs once, when PostgreSQL has made its cluster: the role and the database of Windlass. It is no superuser; it may create
# roles, because the migrations create the two that keep tenants apart (docs/security.md).
set -eu
psql --set=ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres --set=password="$WINDLASS_PASSWORD" <<'SQL'
create role windlass login createrole password :'password';
create database windlass owner windlass;
SQL
