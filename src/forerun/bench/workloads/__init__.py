"""What servers are asked. Each workload is a value: its sizes are fields, `single:tokens=256` on the command line.

All texts follow from the seed and the number of the round, so that every server is asked the same, and no round finds
what another one left in a cache. Answers are greedy and have exactly the wanted length (end tokens are banned), since
rates of answers of different lengths say little.
"""
