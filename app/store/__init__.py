"""SQL: what is durable besides bytes. Rows stay in this room; what leaves it is a frozen value of the domain.

Who: a function takes a `Read` or a `Write` (`app.store.db`) as its first argument and so announces what it may do; the
caller owns the transaction, and a function never commits. What a client asks for is scoped by `project_id`; the drain
works across projects.
Until when: a lease holds until the database's clock passes `leased_until`; from then on anyone may claim the chunk, and
the claim's fresh token takes authority from the old one. Until somebody does, the old token still counts.
In which order: every fenced write says `WHERE lease_token = :token`, every transition `WHERE status IN (…)`, and both
look at RETURNING: no row is a typed error, never an overwrite. While a chunk is under lease, its row is locked before
its batch's.
"""
