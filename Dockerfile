# syntax=docker/dockerfile:1
# The server, the dashboard and the command line in one small image: `docker build -t windlass .`
# docs/deploy.md says how to run it.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# The caches live beside the build, not in the image: a second build compiles only what changed.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --package windlass-cli \
    && install -D --mode=755 target/dist/windlass /out/usr/local/bin/windlass \
    && install -d --mode=750 --owner=65532 --group=65532 /out/data

# A C library, certificates and a user without rights; no shell and no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/ /
USER 65532:65532
# A SQLite file goes here unless WINDLASS_DB names a PostgreSQL.
ENV WINDLASS_DB=sqlite:/data/windlass.db
# Where the server listens, and where its health check asks.
ENV WINDLASS_LISTEN=0.0.0.0:7878
VOLUME ["/data"]
EXPOSE 7878
# Ends like Ctrl-C: running jobs are handed back, streams of events are closed.
STOPSIGNAL SIGTERM
# The image has neither shell nor curl. Only the process itself: a database that is away is no reason to restart it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["/usr/local/bin/windlass", "healthy", "--live"]
ENTRYPOINT ["/usr/local/bin/windlass"]
CMD ["serve", "--migrate"]
