# lockrun alone, static: FROM scratch has no shell, no getent and no C library, and lockrun needs none of them.
#
#   docker build -t lockrun .
#   COPY --from=lockrun /lockrun /usr/local/bin/lockrun      in the image of a job
FROM rust:1-alpine AS build
# Whatever version goes with the image's compiler.
# hadolint ignore=DL3018
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY . .
# Without .cargo: its settings are for glibc. musl programs are static by themselves.
RUN rm -rf .cargo && cargo build --release --locked && cp target/release/lockrun /lockrun

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /lockrun /lockrun
ENTRYPOINT ["/lockrun"]
