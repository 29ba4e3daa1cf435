# choir in a container: docker build -t choir . (docs/getting-started.md). The first stage builds Debian packages, the
# second installs those of the program and the library, with what these need.
FROM debian:12 AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential cmake ninja-build pkg-config file \
    libjansson-dev libarchive-dev zlib1g-dev libxxhash-dev libsentencepiece-dev librandom123-dev
COPY . /choir
RUN cmake -S /choir -B /build -G Ninja -DCHOIR_TESTS=OFF && cmake --build /build && cmake --build /build --target package

FROM debian:12
COPY --from=build /build/choir_*.deb /build/libchoir0_*.deb /packages/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /packages/*.deb \
 && rm -rf /packages /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["choir"]
CMD ["help"]
