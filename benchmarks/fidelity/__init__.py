"""How much of what matters a payload still states after five compactions.

1. A session is generated from a seed. Statements are planted in it whose values and subjects are
   known: rules, constraints, facts, updates, standing instructions, todo lists.
2. The served product compacts it five times, with more history before each. What its payload then
   states is judged by the payload's text alone; nothing of `app/` is used for that.
3. The wordings may not be read to write a summariser: the figures come from wordings, words and
   seeds that the code was not fitted to.
"""
