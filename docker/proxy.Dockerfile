# The proxy of docker/compose.yaml. Build from the root of the checkout:
#   docker build --file docker/proxy.Dockerfile --tag cohort-proxy .
ARG NGINX_IMAGE=nginx:1.28.0-bookworm
FROM $NGINX_IMAGE
COPY docker/nginx.conf /etc/nginx/nginx.conf
# A volume takes the owner of the folder that it covers; bodies wait in it until they are whole.
RUN install --directory --owner nginx --group nginx --mode 700 /var/cache/cohort
USER nginx
EXPOSE 8080 8443
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8081/healthz"]
