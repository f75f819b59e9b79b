"""The `openai_endpoint` engine: a server that speaks OpenAI's chat completions; messages in, text out."""
