# An image whose program runs in one container at a time, on any host. Build lockrun's own image first:
#   docker build -t lockrun .        in lockrun's source
FROM debian:stable-slim
COPY --from=lockrun /lockrun /usr/local/bin/lockrun
COPY scheduler /usr/local/bin/scheduler
# lockrun takes the place of a shell script as entry point: it relays signals, and ends as the program ends. Name the store when you
# start the container: docker run -e LOCKRUN_STORE=redis://redis.example.com ...
ENTRYPOINT ["/usr/local/bin/lockrun", "--key", "scheduler", "--wait", "--"]
CMD ["scheduler"]
