# accel_bridge on a machine without an accelerator. From the root of the repository:
# docker build -f containers/cpu.Dockerfile -t accel-bridge:cpu .
FROM python:3.12.12-slim-bookworm AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /src
# PyTorch's index of CPU wheels makes the image 5 GB smaller; its own page names it.
ARG TORCH_INDEX=""
RUN python -m venv /opt/venv
COPY constraints.txt ./
RUN if [ -n "$TORCH_INDEX" ]; then \
        /opt/venv/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" \
            "$(grep -E '^torch==' constraints.txt)"; \
    fi
COPY . .
RUN /opt/venv/bin/pip install --no-cache-dir -c constraints.txt ".[megatron,preprocess,report]"

FROM python:3.12.12-slim-bookworm
RUN useradd --create-home --uid 1000 bridge
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
USER 1000
WORKDIR /home/bridge
ENTRYPOINT ["accel-bridge"]
CMD ["env"]
