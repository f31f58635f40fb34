# An image that runs `duramen`:
#   docker build -t duramen .
#   docker run --rm -v "$PWD":/data duramen verify events

FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels .

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links=/wheels duramen \
    && useradd --uid 1000 --create-home duramen \
    && install -d -o duramen /data
USER duramen
WORKDIR /data
ENTRYPOINT ["duramen"]
CMD ["--help"]
