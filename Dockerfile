# choir in a container: docker build -t choir . (docs/getting-started.md). The first stage builds the Debian packages, the
# second installs those of the program and the library, with what these need.
FROM debian:12 AS build
COPY . /build/choir
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential \
 && apt-get build-dep -y --no-install-recommends /build/choir \
 && cd /build/choir && dpkg-buildpackage -us -uc -b

FROM debian:12
COPY --from=build /build/choir_*.deb /build/libchoir1_*.deb /packages/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /packages/*.deb \
 && rm -rf /packages /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["choir"]
CMD ["help"]
