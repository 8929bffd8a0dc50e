# syntax=docker/dockerfile:1
#
#   docker build -t kvatlas --build-arg VERSION="$(git describe --tags --always --dirty)" .
#   docker run --rm -p 127.0.0.1:8080:8080 -v "$PWD/.cache/tokenizers:/tokenizers:ro" kvatlas

# --- The tokenizer library: from the Rust sources in the Go module, with Debian's cargo, which the
# script installs. A stage of its own, so that it is built again only when its own inputs change.
FROM golang:1.26-bookworm AS library
WORKDIR /src
ENV KVATLAS_CACHE=off
COPY go.mod go.sum ./
COPY rust ./rust
COPY scripts/build-libtokenizers.sh scripts/need.sh scripts/libtokenizers.sha256 ./scripts/
COPY tokenpool/internal/link ./tokenpool/internal/link
RUN scripts/build-libtokenizers.sh && rm -rf .cache

# --- The program, with the library linked in statically. What remains dynamic is glibc and libgcc_s.
FROM library AS build
RUN go mod download
COPY . .
ARG VERSION=
RUN GOFLAGS=-trimpath make build VERSION="$VERSION"

# --- What runs: Debian's small image has both of them, and bash, for the health check.
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 65532 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin kvatlas \
 && install -d -o kvatlas -g kvatlas /var/cache/kvatlas \
 && install -d /tokenizers
COPY --from=build /src/bin/kvatlas /usr/local/bin/kvatlas
COPY LICENSE /usr/share/doc/kvatlas/LICENSE
# By number, so that Kubernetes' runAsNonRoot can tell.
USER 65532:65532
# Inside a container the outside has to reach it; publish the port only where it should be reached.
ENV KVATLAS_LISTEN=0.0.0.0:8080 \
    KVATLAS_TOKENIZERS=/tokenizers \
    KVATLAS_HUB_CACHE=/var/cache/kvatlas
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["kvatlas"]
CMD ["serve"]
