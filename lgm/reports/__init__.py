"""A plan for people.

Tables, a picture and a timeline (``report``), a page for a browser (``page``), a snapshot for torch's memory viewer
(``snapshot``).
"""
