"""Everything that runs the model, and the way to reach it.

This package knows token ids and log-probabilities. It must never know of questions, answers or
public HTTP requests, and never imports `evaluations`. Its modules, by subject:

* settings: `config`, `setting_values`, `profiles`, `checks`, `apps`;
* text to token ids: `tokenizer`, `chat_template`, `vocabulary`, `plain_encoder`, `token_ids`,
  `checkpoint`;
* JSON: `fast_json`;
* calls to any engine that speaks SGLang's protocol: `engine`, `client`, `fan_out`, `protocol`,
  `transport`, `connection`, `slots`, `errors`;
* whether it is the right one, and works: `description`, `fit`, `health`;
* what is started, and how: `options`, `serve`, `launch`, `engine_commands`, `sglang`;
* while it runs: `runtime`, `watchers`, `progress`, `lifespan`, `supervisor`, `keeper`,
  `engine_log`;
* the servers and processes that the API runs on: `serving`;
* the engine for the CPU: `embedded`.
"""
