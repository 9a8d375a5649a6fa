# An image whose program runs in one container at a time, wherever the containers are. Build lockrun's own image first:
#   docker build -t lockrun .        in lockrun's source
FROM debian:stable-slim
COPY --from=lockrun /lockrun /usr/local/bin/lockrun
COPY scheduler /usr/local/bin/scheduler
# lockrun takes the place of a shell script as entry point: it passes signals on, and ends as the program ends. The store is named when
# the container is started: docker run -e LOCKRUN_STORE=redis://redis.example.com ...
ENTRYPOINT ["/usr/local/bin/lockrun", "--key", "scheduler", "--wait", "--"]
CMD ["scheduler"]
