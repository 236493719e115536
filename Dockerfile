# An image of one of the programs, which make images builds before. Nothing else is
# in it: the programs are linked statically. For several architectures at a time there
# is make image-archives push-images, which goes without docker (hack/images).
#
#   docker build --build-arg PROGRAM=sidecar --tag tallyman/sidecar:dev .
FROM scratch
ARG PROGRAM
ARG TARGETARCH=amd64
COPY bin/linux-${TARGETARCH}/${PROGRAM} /program
# A number, so that the kubelet can tell that it is not root.
USER 65532:65532
ENTRYPOINT ["/program"]
ARG VERSION=dev
ARG REVISION
LABEL org.opencontainers.image.title="tallyman ${PROGRAM}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/tallyman-dev/tallyman"
