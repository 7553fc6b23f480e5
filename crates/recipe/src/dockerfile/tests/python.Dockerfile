# syntax=docker/dockerfile:1
ARG PYTHON_VERSION=3.12
FROM python:${PYTHON_VERSION}-slim

LABEL org.opencontainers.image.title="shop" maintainer='Web Team'

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    # Where the environment lives.
    VIRTUAL_ENV=/opt/venv
ENV PATH="$VIRTUAL_ENV/bin:$PATH"

RUN apt-get update \
    # Drivers of the database.
    && apt-get install -y --no-install-recommends libpq5 \

    && rm -rf /var/lib/apt/lists/*

WORKDIR /srv
WORKDIR app
COPY requirements.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m venv $VIRTUAL_ENV && pip install -r requirements.txt

COPY --chown=web:web --chmod=0644 . .
COPY <<-EOF /etc/shop.conf
	[shop]
	root = "${VIRTUAL_ENV}"
	price = \$5
EOF

USER web
EXPOSE 8000
HEALTHCHECK --interval=30s CMD curl -f http://localhost:8000/ || exit 1
ENTRYPOINT ["gunicorn"]
CMD ["--bind", "0.0.0.0:8000", "shop:app"]
