"""The public API's HTTP: the servers it runs on, and the processes it may be spread over.

What every request must keep to before it reaches the application is enforced here: how long it may
take and be, and in what form it is refused. This package must never know what a request asks, nor
what the application does. Its modules, by subject:

* any server: `servers`, `base_server`, `acceptor`, `refusals`;
* Daphne: `daphne_server`, `daphne_channel`, `plain_request`, `uploads`;
* uvicorn: `uvicorn_server`, `uvicorn_channel`, `uvicorn_transport`;
* several processes on one port: `workers`, `worker`, `heartbeat`, `share`.
"""
