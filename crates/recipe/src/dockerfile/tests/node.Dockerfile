ARG NODE=20
ARG FLAVOUR=bookworm

FROM --platform=$BUILDPLATFORM node:${NODE}-${FLAVOUR} AS deps
ARG NPM_FLAGS="--no-audit --no-fund"
ARG TARGETARCH
WORKDIR /app
RUN apt-get update && apt-get install -y python3 make g++
COPY package.json package-lock.json ./
RUN npm ci $NPM_FLAGS
# The native module is built for this machine.
RUN npm rebuild better-sqlite3 --build-from-source

FROM deps AS Build
ARG NODE_ENV=production
ENV NODE_ENV=$NODE_ENV
COPY . .
RUN ["npm", "run", "build"]

FROM deps AS lint
RUN npm run lint

FROM node:${NODE}-${FLAVOUR}-slim
ARG NODE
WORKDIR /app
ENV NODE_ENV production
COPY --from=deps /app/node_modules ./node_modules
COPY --link --from=build --chown=node:node /app/dist ./dist
COPY --from=busybox:1.36 /bin/busybox /usr/local/bin/
RUN echo "built with $NODE" > /etc/built
USER node
CMD node dist/server.js
