"""Everything that runs the model, and the way to reach it.

This package knows token ids and log-probabilities. It must never know of questions, answers or
public HTTP requests, and never imports `evaluations`. What other packages may use:

* `backend.config.Config`: the validated settings;
* `backend.engine.Engine`: what is asked of an engine, and `backend.client.EngineClient`, which asks
  any that speaks SGLang's protocol;
* `backend.tokenizer.ChatTokenizer`: text to token ids, with the caller's text kept apart;
* `backend.errors`: what can go wrong between us and an engine.
"""
