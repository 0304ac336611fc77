"""`transduce serve`: one model behind an OpenAI-compatible HTTP interface.

`batcher` and `schedule` put the spans of all requests into shared batches, `recognition` turns an upload
into a transcript through them; none of these knows HTTP. `app` and what it imports are the HTTP side.
Importing this package imports nothing; its HTTP modules need the extra `server`.
"""

__all__: list[str] = []
