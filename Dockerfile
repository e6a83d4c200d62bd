# Operator, resolver and command line in one image: the manifests' commands say which one runs.
#
#   docker build -t registry.example.com/elasti:1 .
#
# `hack/image/check` runs the same steps where there is no container engine. A release names its base by digest
# (--build-arg BASE=python:3.13-slim@sha256:...): see docs/guide/installing.md.

ARG BASE=python:3.13-slim
FROM ${BASE} AS build
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
COPY hack/image/steps hack/image/root hack/image/
COPY packages/kubeloop packages/kubeloop
COPY packages/elasti packages/elasti
RUN hack/image/steps /opt/elasti
RUN hack/image/root /opt/elasti /gathered

# No shell, no pip, no package manager: only what the programs load.
FROM scratch
LABEL org.opencontainers.image.title="elasti" \
      org.opencontainers.image.description="Scale-to-zero for Kubernetes: idle workloads sleep; the next connection is held and wakes them" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /gathered /
# The root file system is read-only, so nothing is written beside the modules; logs go out line by line.
ENV PATH=/opt/elasti/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# By number, so that a kubelet can tell that it is not root.
USER 65532:65532
EXPOSE 8013 8081
ENTRYPOINT ["elasti"]
CMD ["--help"]
