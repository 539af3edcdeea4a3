"""The database: one gateway, the command store, migrations, PGMQ, the SQL functions."""
