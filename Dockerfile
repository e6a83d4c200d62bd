# Operator, resolver and command line in one image: the manifests' commands say which one runs.
#
#   docker build -t registry.example.com/elasti:1 .
#
# `hack/image/check` runs the same steps where there is no container engine.

FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements-dev.lock ./
COPY hack/image/steps hack/image/steps
COPY packages/kubeloop packages/kubeloop
COPY packages/elasti packages/elasti
RUN hack/image/steps /opt/elasti

FROM python:3.13-slim
LABEL org.opencontainers.image.title="elasti" \
      org.opencontainers.image.description="Scale-to-zero for Kubernetes: idle workloads sleep, connections are held and wake them" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/elasti /opt/elasti
# The root file system is read-only, so nothing is written beside the modules; logs go out line by line.
ENV PATH=/opt/elasti/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# By number, so that a kubelet can tell that it is not root.
USER 65532:65532
EXPOSE 8013 8081
ENTRYPOINT ["elasti"]
CMD ["--help"]
