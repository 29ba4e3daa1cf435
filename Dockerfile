# choir in a container: docker build -t choir . (docs/getting-started.md). The first stage builds the Debian packages, the
# second installs those of the program and the library, with what these need.
FROM debian:12 AS build
COPY . /build/choir
RUN apt-get update \
 && apt-get install -y --no-install-recommends build-essential \
 && apt-get build-dep -y --no-install-recommends /build/choir \
 && cd /build/choir && dpkg-buildpackage -us -uc -b

FROM debian:12 AS program
COPY --from=build /build/choir_*.deb /build/libchoir1_*.deb /packages/
RUN apt-get update \
 && apt-get install -y --no-install-recommends /packages/*.deb \
 && rm -rf /packages /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["choir"]
CMD ["help"]

# docker build --target cluster -t choir-cluster .: for examples/kubernetes, where a launcher reaches its nodes by SSH.
FROM program AS cluster
RUN apt-get update \
 && apt-get install -y --no-install-recommends openmpi-bin openssh-client openssh-server \
 && rm -rf /var/lib/apt/lists/* \
 && useradd -m -u 1000 mpiuser \
 && printf 'PidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nAuthorizedKeysFile /home/mpiuser/.ssh/authorized_keys\nStrictModes no\nPort 2222\n' >/home/mpiuser/.sshd_config \
 && printf 'StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nPort 2222\n' >>/etc/ssh/ssh_config
USER mpiuser
ENTRYPOINT []
CMD ["sleep", "infinity"]

# What `docker build` makes unless told otherwise.
FROM program
