"""What is asked, how it is shown to the model, and how the answer is read.

Imports run one way: `openjev_site` → `evaluations` → `backend`. `questions`, `prompts`, `labels`
and `scoring` are pure: no web framework, no I/O. The modules, by subject:

* what is asked and answered: `questions`, `serializers`, `fields`, `strict_json`, `parsers`,
  `transcripts`, `quoting`, `answers`, `examples`;
* how it is shown: `prompts`, `question_text`, `wording`, `suffixes`;
* how it is read: `labels`, `answer_forms`, `readout`, `scoring`;
* what is done about a request: `runtime`, `start`, `admission`, `service`, `exceptions`;
* HTTP: `views`, `async_view`, `negotiation`, `authentication`, `errors`, `request_log`,
  `catalogue`, `page`, `apps`;
* how the API is described: `schema`, `schema_fields`;
* whether a server works and makes sense: `smoke`.
"""
