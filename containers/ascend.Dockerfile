# accel_bridge on Ascend NPUs; the driver stays on the host. NOT BUILT AND NOT RUN YET.
# From the root of the repository:
# docker build -f containers/ascend.Dockerfile -t accel-bridge:ascend .
# CANN and torch_npu must match (docs/ascend.md); 910b is the chip, a3 another.
ARG CANN=9.0.1-910b-ubuntu22.04-py3.12
FROM quay.io/ascend/cann:${CANN}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG TORCH=2.10.0
ARG TORCH_NPU=2.10.0
# On x86-64 torch must be a CPU build: the address of PyTorch's index of CPU wheels.
ARG TORCH_INDEX=""
WORKDIR /src
RUN python3 -m venv /opt/venv \
    && if [ -n "$TORCH_INDEX" ]; then \
        /opt/venv/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch==$TORCH"; \
    fi \
    && /opt/venv/bin/pip install --no-cache-dir \
        "torch==$TORCH" "torch-npu==$TORCH_NPU" pyyaml==6.0.3
COPY . .
RUN /opt/venv/bin/pip install --no-cache-dir "torch==$TORCH" ".[megatron,preprocess,report]" \
    && useradd --create-home --uid 2000 bridge
ENV PATH=/opt/venv/bin:$PATH
USER 2000
WORKDIR /home/bridge
# CANN's environment is set by a script of its own.
ENTRYPOINT ["/bin/bash", "-c", "source /usr/local/Ascend/ascend-toolkit/set_env.sh && exec accel-bridge \"$@\"", "accel-bridge"]
CMD ["env"]
