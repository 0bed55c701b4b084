"""How a real SGLang is started, and kept from what would make its answers wrong or slow.

What its protocol is, `backend.client` knows. This package must never start a process other than
the interpreter that it asks for a version. Its modules:

* `interpreter`: the Python that has SGLang;
* `flags`: the command line that a person gives, read and checked;
* `command`: the command line and the environment that come of it and of the settings;
* `key`: how the engine's key reaches it.
"""
