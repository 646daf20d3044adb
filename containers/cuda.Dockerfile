# accel_bridge on NVIDIA GPUs. From the root of the repository:
# docker build -f containers/cuda.Dockerfile -t accel-bridge:cuda .
# CUDA, cuDNN and NCCL come with PyTorch's wheel, and the driver with NVIDIA's container runtime.
FROM python:3.12.12-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /src
RUN python -m venv /opt/venv
COPY . .
RUN /opt/venv/bin/pip install --no-cache-dir -c constraints.txt ".[megatron,preprocess,report]"

FROM python:3.12.12-slim-bookworm
# Triton compiles a launcher for each kernel.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 bridge
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /home/bridge
ENTRYPOINT ["accel-bridge"]
CMD ["env"]
