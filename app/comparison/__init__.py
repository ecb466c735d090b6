"""`context-service compare`: one conversation under several strategies, side by side.

1. The conversation is replayed in an app of its own, over its HTTP interface but without a socket.
   Its database is a private one in a temporary directory, which is deleted in the end. So all that
   is measured is what the service does, and nothing is stored.
2. It does what an agent does: it appends messages, and builds a payload before each answer of the
   model. Compactions are forced: at the end of each round to the target, and in between where one
   is due, as a worker would run it.
3. What survives is judged by the text of the last payload alone.
"""
