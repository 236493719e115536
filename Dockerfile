# An image of one of the programs, which make images builds before. Nothing else is
# in it: the programs are linked statically.
#
#   docker build --build-arg PROGRAM=sidecar --tag tallyman/sidecar:dev .
FROM scratch
ARG PROGRAM
ARG TARGETARCH=amd64
COPY bin/linux-${TARGETARCH}/${PROGRAM} /program
# A number, so that the kubelet can tell that it is not root.
USER 65532:65532
ENTRYPOINT ["/program"]
