# One image for every process: the API, the relay, the worker and the migrations differ only in their command.
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app

# requirements.txt serves as a list of versions here, not as a list of packages: what only developers need stays out.
# This layer changes when dependencies change, not with every edit of the sources.
COPY pyproject.toml requirements.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > direct.txt \
    && pip install --no-cache-dir --constraint requirements.txt --requirement direct.txt

COPY README.md LICENSE ./
COPY models models
COPY search search
COPY workers workers
COPY service service
RUN pip install --no-cache-dir --no-deps . \
    && useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin vitailor \
    && install --directory --owner vitailor --group vitailor --mode 0750 /data

# Not /app: the processes must run the installed package, not the copy beside it.
WORKDIR /data
USER 10001:10001
# Weights that teachers are fetched from go into the volume too: the user has no home.
ENV VITAILOR_DATA_DIR=/data HF_HOME=/data/huggingface
VOLUME /data
EXPOSE 8000

CMD ["python", "-m", "service.main"]
